"""The strategy of `fusebench calibrate`: A/A comparisons and injected slowdowns of known size."""
