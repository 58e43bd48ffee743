"""Traffic: query and arrival generators, Locust users, the open-loop driver."""
