"""Other formats and frameworks: a store's steps go out to them and come in from them."""
