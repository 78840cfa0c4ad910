"""Install: writing winners to the config files of libraries, and checking that they are used."""
