"""The worker itself: what runs in the process that kernels are imported and called in."""
