// Makes the calls that it reads from stdin, a line of JSON each, and prints what it observed of each one:
// runner --server HOST:PORT. tests/scenarios/README.md describes the lines.
#include <iostream>
#include <string>
#include <vector>

#include <google/rpc/code.pb.h>

#include "calls.hpp"

namespace {

using google::protobuf::Struct;

std::string refusal(const wattwise::Error& error) {
  Struct refusal;
  auto& fields = *refusal.mutable_fields();
  fields["reason"].set_string_value(error.reason);
  fields["status"].set_string_value(google::rpc::Code_Name(static_cast<google::rpc::Code>(error.code)));
  auto& violations = *fields["fields"].mutable_list_value();
  for (const auto& violation : error.violations) violations.add_values()->set_string_value(violation.field);
  auto& metadata = *fields["metadata"].mutable_struct_value()->mutable_fields();
  for (const auto& [key, value] : error.metadata) metadata[key].set_string_value(value);
  return to_json(refusal);
}

// Makes the call of a line and returns the line with its answer. An error that is not one of the client ends the program.
std::string observe(Calls& calls, const std::string& line) {
  const Struct read = from_json<Struct>(line);
  const auto number = [&](const char* name) {
    const auto found = read.fields().find(name);
    return found == read.fields().end() ? 0 : static_cast<int>(found->second.number_value());
  };
  const auto request = read.fields().find("request");
  std::string observed;
  try {
    observed = "\"answer\": " + calls.make(read.fields().at("call").string_value(), number("stream"),
                                           request == read.fields().end() ? "{}" : to_json(request->second));
  } catch (const wattwise::Error& error) {
    observed = "\"error\": " + refusal(error);
  }
  return "{\"id\": " + std::to_string(number("id")) + ", " + observed + "}";
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> args(arguments + 1, arguments + count);
  if (args.size() != 2 || args[0] != "--server") {
    std::cerr << "usage: runner --server HOST:PORT\n";
    return 2;
  }
  try {
    wattwise::Client client(args[1], wattwise::Credentials::from_env());
    Calls calls(client);
    for (std::string line; std::getline(std::cin, line);) std::cout << observe(calls, line) << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
