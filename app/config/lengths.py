"""How long prompts and outputs may be: what the settings ask for, within what the verifier has."""

from __future__ import annotations

from app.config.settings import DEFAULT_MAX_POSITIONS, Settings, SettingsError, variable


def lengths(settings: Settings, max_positions: int) -> tuple[int, int]:
    """Decoder positions and encoder tokens per request, for a verifier of `max_positions`.

    Raises:
        SettingsError: one is above what the verifier has, or what one engine step takes whole.
    """
    for field in ("max_model_len", "max_encoder_len"):
        asked = getattr(settings, field)
        if asked is not None and asked > max_positions:
            raise SettingsError(
                f"{variable(field)}={asked} is above the verifier's max_position_embeddings {max_positions}"
            )
    decoder = settings.max_model_len or min(max_positions, DEFAULT_MAX_POSITIONS)
    encoder = settings.max_encoder_len or decoder
    step = settings.max_num_batched_tokens
    for field, limit in (("max_encoder_len", encoder), ("max_model_len", decoder)):
        if step is not None and step < limit:
            raise SettingsError(
                f"{variable('max_num_batched_tokens')}={step} is below {variable(field)}={limit}: a request is"
                " not split over steps"
            )
    return decoder, encoder
