"""Pictures of runs and histories, drawn with matplotlib."""
