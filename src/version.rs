//! Versions of balenaOS: `X.Y.Z[-label][+revN]`.
