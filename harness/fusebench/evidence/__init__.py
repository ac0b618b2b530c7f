"""What a kernel is made of: evidence from its machine code, which needs no GPU and does not vary from run to run."""
