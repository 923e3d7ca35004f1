"""The optimisation problems that methods solve: numbers in, numbers out."""
