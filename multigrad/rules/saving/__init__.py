"""Files of rules and Functions, and what is made of a document."""
