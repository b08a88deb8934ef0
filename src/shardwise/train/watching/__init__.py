"""Progress, signals and the end of a rank: what it reports, and the watchdog that ends it"""
