"""Functions of code: capture, proof, native runs, documents, importers."""
