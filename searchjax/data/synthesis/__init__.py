"""Question synthesis: facts, chains of them, name-free questions, solvers."""
