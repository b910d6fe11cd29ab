"""What other tools would say, term by term, and the faults one can see in them."""
