"""The launches of a call: noted as the machine code that ran, and repeated for later calls of the same layouts."""
