"""What commands share: options, selection, progress, output and the exit status."""
