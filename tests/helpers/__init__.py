"""What several test modules share: fakes, factories and simulations, imported as `helpers.NAME`."""
