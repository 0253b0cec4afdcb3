"""From measured runs of an engine to coefficients of the step-time model."""
