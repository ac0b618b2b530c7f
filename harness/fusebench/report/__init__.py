"""What people and CI read: views of a run, made from the record alone."""
