"""The building blocks of algorithms: advantage estimators, policy losses, and the class that combines them."""
