"""The size of change that counts: margins by class of call, and the spread that an interval covers."""
