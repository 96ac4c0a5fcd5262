"""How operations get to their tiers, in order and in time: the native engine, laid out, started and watched."""
