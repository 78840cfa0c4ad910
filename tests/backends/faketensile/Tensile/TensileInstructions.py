class TensileInstructions:
    pass
