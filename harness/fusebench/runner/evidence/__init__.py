"""Evidence about regressions: the sources of a run, and the attachments of a finding."""
