// The `troupe` command: one file per subcommand.
#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>

#include "apps/commands.hpp"

namespace {

// UCX reads some settings when its library is loaded, so they must be there before the program starts:
// without them it would install its own handlers for SIGSEGV and friends. Starts the program again once.
void start_with_wire_environment(char** arguments) {
  if (std::getenv("UCX_ERROR_SIGNALS") != nullptr) return;
  setenv("UCX_ERROR_SIGNALS", "", 1);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
  execv("/proc/self/exe", arguments);
  // Where that is not possible the defaults do; only crash reports look different.
}

}  // namespace

int main(int count, char** arguments) {
  start_with_wire_environment(arguments);
  spdlog::set_default_logger(spdlog::stderr_color_mt("troupe"));
  spdlog::set_pattern("%H:%M:%S.%e %^%l%$ %v");

  CLI::App app{"Troupe serves mixture-of-experts language models of the DeepSeek-V3/R1 family on actors."};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help for every subcommand");
  std::string log_level = "info";
  app.add_option("--log", log_level, "Log level on stderr: debug, info, warn, error or off")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.parse_complete_callback([&log_level] { spdlog::set_level(spdlog::level::from_str(log_level)); });
  app.footer(
      "Exit codes: 0 done, 1 failed while running, 2 wrong usage or configuration, 3 refused by the head.\n"
      "Start here: troupe serve config/local.yaml");

  int exit_code = 0;
  troupe::add_serve(app, exit_code);
  troupe::add_node(app, exit_code, arguments);
  troupe::add_drain(app, exit_code);
  troupe::add_generate(app, exit_code);
  troupe::add_place(app, exit_code);
  troupe::add_bench(app, exit_code);
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& failure) {
    const int code = app.exit(failure);
    return code == 0 ? 0 : troupe::exit_usage;
  }
  return exit_code;
}
