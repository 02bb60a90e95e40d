"""What is read off a function and its objects before it runs."""
