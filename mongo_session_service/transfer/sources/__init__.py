"""Where sessions can be read from, a module for each layout."""
