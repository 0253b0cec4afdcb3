"""The what-if dashboard: controls to a scenario, results to figures; every number comes from the library."""
