"""What a CI system calls: the nightly, the gate of a pull request, and the texts that they leave behind.

Every measurement is a `fusebench` command in a process of its own, so that a log shows what can be repeated by hand.  Nothing is
judged here: verdicts and exit codes are those of `run`, `gate`, `ab` and `static`.
"""
