"""What algorithms are put together from: advantage estimators, surrogates, and the class that joins them."""
