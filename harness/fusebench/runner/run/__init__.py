"""The strategy of `fusebench run`: check and time every kernel of a case, and remeasure suspects."""
