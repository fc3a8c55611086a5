"""What evaluation counts: accuracy, budgets, cost and their intervals."""
