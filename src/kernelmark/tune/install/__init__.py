"""Install: winners in the configuration files of the libraries that run them."""
