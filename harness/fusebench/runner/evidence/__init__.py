"""Evidence about regressions: the sources that a run was made of, and what is attached to a finding."""
