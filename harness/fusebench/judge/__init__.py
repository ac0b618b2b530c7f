"""`fusebench eval`: judge one candidate kernel that nobody trusts.

The candidate runs in a confined process that holds no reference and no expected value; a judge process draws inputs, computes references
and compares; the command line starts both, enforces time and memory, and imports no kernel file.
"""
