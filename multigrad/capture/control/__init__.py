"""Control flow in captured code, and gradients that it takes itself."""
