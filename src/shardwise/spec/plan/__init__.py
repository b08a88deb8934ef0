"""A plan, its forecasts, and plan.json."""
