"""Several engines behind one server: kept alive, and chosen by what their caches hold."""
