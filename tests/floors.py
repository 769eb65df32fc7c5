"""Which room of a house stands on which floor."""

FLOORS = {
    "app": (
        ("app", "app.cli"),
        ("app.bench",),
        ("app.factory", "app.vllm_serve"),
        ("app.routes",),
        ("app.completions",),
        ("app.gateway", "app.middleware", "app.vllm_engine"),
        ("app.admission", "app.probing", "app.scope", "app.tokenizing", "app.warm_up", "app.watching"),
        ("app.errors", "app.engine_arguments", "app.cpu_process", "app.hf_tokenizer", "app.bad_words"),
        ("app.config_check",),
        ("app.cancellation", "app.engine", "app.windows"),
        ("app.drafts",),
        ("app.environment", "app.logs", "app.settings_reference", "app.uvicorn_command"),
        ("app.dotenv_file",),
        ("app.settings", "app.address", "app.child_processes", "app.progress"),
    ),
    "plugin": (
        ("plugin",),
        ("plugin.vllm_hooks", "plugin.training"),
        ("plugin.drafts", "plugin.verifier"),
        (
            "plugin.projection",
            "plugin.checked_weights",
            "plugin.drafts.safetensors_header",
            "plugin.engine_imports",
        ),
        ("plugin.attention", "plugin.drafts.facts", "plugin.quiet_logs", "plugin.engine_process"),
    ),
    "plugin.training": (
        ("plugin.training", "plugin.training.command"),
        ("plugin.training.demo",),
        ("plugin.training.entry",),
        ("plugin.training.run_data",),
        ("plugin.training.run",),
        ("plugin.training.verifier",),
        ("plugin.training.draft",),
        ("plugin.training.data",),
        ("plugin.training.data.problems",),
        ("plugin.training.flags",),
        ("plugin.training.settings", "plugin.training.device", "plugin.training.seeds"),
    ),
    "benchmarks": (
        ("benchmarks", "benchmarks.engine", "benchmarks.gateway_cost", "benchmarks.linear"),
        ("benchmarks.report", "benchmarks.served_accuracy"),
        ("benchmarks.serving_walk", "benchmarks.training"),
        ("benchmarks.attention", "benchmarks.comparison", "benchmarks.shapes"),
        ("benchmarks.results",),
    ),
}
"""The rooms of a house from the top down. A module knows its own room and the floors below it."""
