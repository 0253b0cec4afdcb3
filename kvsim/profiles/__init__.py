"""Profiles: hardware, models, engines and prices as data with provenance."""
