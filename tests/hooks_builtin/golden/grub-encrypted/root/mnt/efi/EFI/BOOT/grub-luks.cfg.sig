luks sig
