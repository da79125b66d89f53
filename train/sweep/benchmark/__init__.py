"""A benchmark of asynchronous methods: equal tuning, seeds that did not serve it, and the time to a target."""
