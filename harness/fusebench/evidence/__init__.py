"""Static evidence: figures of a kernel's machine code, which need no GPU and do not vary from run to run."""
