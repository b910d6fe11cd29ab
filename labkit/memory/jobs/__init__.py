"""What is trained and how: batch, parallelism, recipe, and the states that follow from them."""
