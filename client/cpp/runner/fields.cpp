#include "fields.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const FieldDescriptor* field_of(const Message& message, const std::string& name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr) throw Mismatch(message.GetDescriptor()->name() + " has no field " + name);
  return field;
}

int enum_number(const FieldDescriptor* field, const YAML::Node& value) {
  const auto* found = field->enum_type()->FindValueByName(value.Scalar());
  if (found == nullptr) throw Mismatch(value.Scalar() + " is not a value of " + field->enum_type()->name());
  return found->number();
}

void set(Message& message, const FieldDescriptor* field, const YAML::Node& value) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(&message, field, value.as<bool>());
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(&message, field, value.as<int>());
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(&message, field, value.as<std::int64_t>());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(&message, field, value.as<double>());
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(&message, field, value.as<std::string>());
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(&message, field, enum_number(field, value));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return fill(*reflection->MutableMessage(&message, field), value);
    default:
      throw Mismatch("this runner does not support the type of " + field->name());
  }
}

void add(Message& message, const FieldDescriptor* field, const YAML::Node& value) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->AddInt32(&message, field, value.as<int>());
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->AddString(&message, field, value.as<std::string>());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return fill(*reflection->AddMessage(&message, field), value);
    default:
      throw Mismatch("this runner does not support the type of the list " + field->name());
  }
}

bool near(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

[[noreturn]] void differs(const std::string& name, const std::string& value, const YAML::Node& expected) {
  throw Mismatch(name + " is " + value + ", not " + shown(expected));
}

void check_number(const std::string& name, double value, const YAML::Node& expected) {
  if (near(value, expected.as<double>())) return;
  std::ostringstream text;
  text.precision(15);
  text << value;
  differs(name, text.str(), expected);
}

// A message or reason must contain the expected text; any other text must equal it.
void check_text(const std::string& name, const std::string& value, const YAML::Node& expected) {
  const auto wanted = expected.as<std::string>();
  const bool part = (name == "message" || name == "reason") && !wanted.empty();
  if (part ? value.find(wanted) == std::string::npos : value != wanted) differs(name, value, expected);
}

void check_one(const Message& message, const FieldDescriptor* field, const YAML::Node& expected) {
  const auto* reflection = message.GetReflection();
  const std::string& name = field->name();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (const bool value = reflection->GetBool(message, field); value != expected.as<bool>()) {
        differs(name, value ? "true" : "false", expected);
      }
      return;
    case FieldDescriptor::CPPTYPE_INT32:
      return check_number(name, reflection->GetInt32(message, field), expected);
    case FieldDescriptor::CPPTYPE_INT64:
      return check_number(name, static_cast<double>(reflection->GetInt64(message, field)), expected);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return check_number(name, reflection->GetDouble(message, field), expected);
    case FieldDescriptor::CPPTYPE_STRING:
      return check_text(name, reflection->GetString(message, field), expected);
    case FieldDescriptor::CPPTYPE_ENUM:
      return check_text(name, reflection->GetEnum(message, field)->name(), expected);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return check(reflection->GetMessage(message, field), expected);
    default:
      throw Mismatch("this runner does not support the type of " + name);
  }
}

void check_list(const Message& message, const FieldDescriptor* field, const YAML::Node& expected) {
  const auto* reflection = message.GetReflection();
  const int size = reflection->FieldSize(message, field);
  if (!expected.IsSequence() || static_cast<int>(expected.size()) != size) {
    differs(field->name(), "a list of " + std::to_string(size), expected);
  }
  for (int i = 0; i < size; ++i) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        check(reflection->GetRepeatedMessage(message, field, i), expected[i]);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        check_number(field->name(), reflection->GetRepeatedInt32(message, field, i), expected[i]);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        check_text(field->name(), reflection->GetRepeatedString(message, field, i), expected[i]);
        break;
      default:
        throw Mismatch("this runner does not support the type of the list " + field->name());
    }
  }
}

const Message& holder_of(const Message& message, const std::string& name) {
  const FieldDescriptor* id = message.GetDescriptor()->FindFieldByName("id");
  if (id == nullptr || name != "trial_number") return message;
  return message.GetReflection()->GetMessage(message, id);
}

}  // namespace

void fill(Message& message, const YAML::Node& node) {
  for (const auto& entry : node) {
    const FieldDescriptor* field = field_of(message, entry.first.as<std::string>());
    message.GetReflection()->ClearField(&message, field);
    if (!field->is_repeated()) {
      set(message, field, entry.second);
      continue;
    }
    for (const auto& item : entry.second) add(message, field, item);
  }
}

void check(const Message& message, const YAML::Node& then) {
  if (!then.IsMap()) differs(message.GetDescriptor()->name(), "a message", then);
  for (const auto& entry : then) {
    const auto name = entry.first.as<std::string>();
    const Message& holder = holder_of(message, name);
    const FieldDescriptor* field = field_of(holder, name);
    if (field->is_repeated()) {
      check_list(holder, field, entry.second);
      continue;
    }
    const bool set = holder.GetReflection()->HasField(holder, field);
    if (entry.second.IsNull()) {
      if (set) throw Mismatch(name + " is set, not unset");
    } else {
      if (field->has_presence() && !set) throw Mismatch(name + " is unset");
      check_one(holder, field, entry.second);
    }
  }
}

void check_keys(const YAML::Node& node, const std::set<std::string>& known) {
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (known.count(key) == 0) throw Mismatch("unknown to this runner: " + key);
  }
}

std::string text(const YAML::Node& node, const std::string& key, const std::string& otherwise) {
  const YAML::Node value = node[key];
  return value ? value.as<std::string>() : otherwise;
}

std::string shown(const YAML::Node& node) {
  YAML::Emitter emitter;
  emitter.SetMapFormat(YAML::Flow);
  emitter.SetSeqFormat(YAML::Flow);
  emitter << node;
  return emitter.c_str();
}
