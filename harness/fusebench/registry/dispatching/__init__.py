"""The choice of a kernel for a call: the callable for model code, the tables that it reads, its calls counted and traced."""
