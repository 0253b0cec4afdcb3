"""Several replicas behind a router: co-simulated engines, dispatch, failures."""
