"""From a job's data to prepared data on disk, once per content."""
