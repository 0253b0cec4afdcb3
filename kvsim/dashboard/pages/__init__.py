"""One module a page of the dashboard; each has a function ``page`` and does nothing when imported."""
