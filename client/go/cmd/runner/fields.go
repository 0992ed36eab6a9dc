package main

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

type fields = map[string]any

// fill sets the fields that a table names.
func fill(message proto.Message, values fields) error {
	target := message.ProtoReflect()
	for name, value := range values {
		field := target.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return fmt.Errorf("%s has no field %s", target.Descriptor().Name(), name)
		}
		if err := set(target, field, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func set(target protoreflect.Message, field protoreflect.FieldDescriptor, value any) error {
	switch {
	case field.IsList():
		items, ok := value.([]any)
		if !ok {
			return fmt.Errorf("%v is not a list", value)
		}
		list := target.Mutable(field).List()
		list.Truncate(0)
		for _, item := range items {
			if inner, ok := item.(fields); ok && field.Message() != nil {
				if err := fill(list.AppendMutable().Message().Interface(), inner); err != nil {
					return err
				}
				continue
			}
			converted, err := scalar(field, item)
			if err != nil {
				return err
			}
			list.Append(converted)
		}
		return nil
	case field.Message() != nil:
		inner, ok := value.(fields)
		if !ok {
			return fmt.Errorf("%v has no fields", value)
		}
		// A message is replaced as a whole.
		target.Clear(field)
		return fill(target.Mutable(field).Message().Interface(), inner)
	}
	converted, err := scalar(field, value)
	if err == nil {
		target.Set(field, converted)
	}
	return err
}

func scalar(field protoreflect.FieldDescriptor, value any) (protoreflect.Value, error) {
	switch kind := field.Kind(); value := value.(type) {
	case string:
		if kind == protoreflect.StringKind {
			return protoreflect.ValueOfString(value), nil
		}
		if kind == protoreflect.EnumKind {
			if found := field.Enum().Values().ByName(protoreflect.Name(value)); found != nil {
				return protoreflect.ValueOfEnum(found.Number()), nil
			}
		}
	case bool:
		if kind == protoreflect.BoolKind {
			return protoreflect.ValueOfBool(value), nil
		}
	case int:
		switch kind {
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(int32(value)), nil
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(int64(value)), nil
		case protoreflect.DoubleKind:
			return protoreflect.ValueOfFloat64(float64(value)), nil
		}
	case float64:
		if kind == protoreflect.DoubleKind {
			return protoreflect.ValueOfFloat64(value), nil
		}
	}
	return protoreflect.Value{}, fmt.Errorf("%v is not a value of type %v", value, field.Kind())
}

// check compares the fields that a table names. A trial's trial_number is that of its id.
func check(message proto.Message, then fields) error {
	holder := message.ProtoReflect()
	for name, expected := range then {
		from := holder
		if name == "trial_number" {
			if id := holder.Descriptor().Fields().ByName("id"); id != nil {
				from = holder.Get(id).Message()
			}
		}
		field := from.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return fmt.Errorf("%s has no field %s", from.Descriptor().Name(), name)
		}
		if err := compare(from, field, expected); err != nil {
			return fmt.Errorf("%s %w", name, err)
		}
	}
	return nil
}

func compare(from protoreflect.Message, field protoreflect.FieldDescriptor, expected any) error {
	value := from.Get(field)
	if expected == nil {
		if from.Has(field) {
			return fmt.Errorf("is %v, not unset", value)
		}
		return nil
	}
	if field.HasPresence() && !from.Has(field) {
		return fmt.Errorf("is unset, not %v", expected)
	}
	if field.IsList() {
		return compareList(field, value.List(), expected)
	}
	return compareOne(field, value, expected)
}

func compareList(field protoreflect.FieldDescriptor, list protoreflect.List, expected any) error {
	items, ok := expected.([]any)
	if !ok || list.Len() != len(items) {
		return fmt.Errorf("has %d entries, not %v", list.Len(), expected)
	}
	for i, item := range items {
		if err := compareOne(field, list.Get(i), item); err != nil {
			return fmt.Errorf("[%d] %w", i, err)
		}
	}
	return nil
}

func compareOne(field protoreflect.FieldDescriptor, value protoreflect.Value, expected any) error {
	if field.Message() != nil {
		inner, ok := expected.(fields)
		if !ok {
			return fmt.Errorf("is a message, not %v", expected)
		}
		return check(value.Message().Interface(), inner)
	}
	if !equal(field, value, expected) {
		return fmt.Errorf("is %v, not %v", shown(field, value), expected)
	}
	return nil
}

// equal compares numbers to twelve digits; a message or reason must contain the expected text.
func equal(field protoreflect.FieldDescriptor, value protoreflect.Value, expected any) bool {
	switch expected := expected.(type) {
	case string:
		if (field.Name() == "message" || field.Name() == "reason") && expected != "" {
			return strings.Contains(shown(field, value), expected)
		}
		return shown(field, value) == expected
	case bool:
		return value.Interface() == expected
	case int:
		return near(number(value), float64(expected))
	case float64:
		return near(number(value), expected)
	}
	return false
}

func shown(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	if field.Kind() == protoreflect.EnumKind {
		if found := field.Enum().Values().ByNumber(value.Enum()); found != nil {
			return string(found.Name())
		}
	}
	return fmt.Sprint(value.Interface())
}

func number(value protoreflect.Value) float64 {
	switch found := value.Interface().(type) {
	case float64:
		return found
	case int32:
		return float64(found)
	case int64:
		return float64(found)
	}
	return math.NaN()
}

func near(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-12*math.Max(math.Abs(a), math.Abs(b))
}

// checkKeys refuses unknown keys, which must not be ignored.
func checkKeys(values fields, known ...string) error {
	for name := range values {
		found := false
		for _, one := range known {
			found = found || one == name
		}
		if !found {
			return fmt.Errorf("unknown to this runner: %s", name)
		}
	}
	return nil
}

// text is the string of a key, or the default if the table does not have one.
func text(values fields, name, otherwise string) string {
	if value, ok := values[name].(string); ok {
		return value
	}
	return otherwise
}
