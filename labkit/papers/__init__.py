"""What one paper alone needs: a module a paper, named for its key, which its notebook imports."""
