"""What is decided before training: population, budgets, phases, and the plan that holds them."""
