"""`attnbench capacity`: the largest size that fits, by case and backend, from the records of its search."""
